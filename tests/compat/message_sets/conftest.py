from tests.records.kernels import implementation

__all__ = ["implementation"]
