"""Replicas of a server on Ray Serve, behind one address; needs the extra `ray`."""

from powerinfer.serve.ray.build import RayOptions, build

__all__ = ["RayOptions", "build"]
