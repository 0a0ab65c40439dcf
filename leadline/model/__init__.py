"""The Transformer."""

from leadline.model.transformer import Transformer

__all__ = ["Transformer"]
