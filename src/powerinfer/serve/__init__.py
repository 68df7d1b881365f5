"""A server of one model: the OpenAI API and its relatives, and a chat page."""
