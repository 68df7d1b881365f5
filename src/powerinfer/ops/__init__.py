"""Operations: the protocol every device offers, the numpy reference and the native backend."""
