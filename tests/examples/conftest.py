from nodes import node

__all__ = ["node"]
