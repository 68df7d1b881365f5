"""Shapes and vocabularies of models with state, for synthetic.py; chats for next_turn.py."""
