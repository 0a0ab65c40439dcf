"""Kernels in Triton, each with the torch expression it must equal. Imported only where they are used."""
