"""Operations: the protocol that every backend implements, and one folder for each backend."""
