"""Orchestra: a policy splits a task and routes its parts to several models and tools."""
