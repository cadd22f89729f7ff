from tests.records.implementations import implementation

__all__ = ["implementation"]
