"""What becomes of a training when the machine fails: kills, full disks, damaged files, wrong inputs, shared caches.

python -m bench.faults --help; docs/reliability.md says what is promised, and what these counted.
"""
