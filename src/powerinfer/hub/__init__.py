"""Models on the Hugging Face Hub: names, listings, choice of files, downloads, the caches.

`fetch.fetch_model("hf:ORG/NAME:Q4_K_M")` returns a GGUF file, `fetch.checkpoint_folder` a folder
for `powerinfer convert`. Only a repository's listing and the files asked for are requested.
`huggingface_hub` provides the token, the settings, the HTTP client and its own cache; the bytes are
downloaded here, by ranges, so that a killed download resumes. A model that is named by its path
imports none of this but `names`.
"""
