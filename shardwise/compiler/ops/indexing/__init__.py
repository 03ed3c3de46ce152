"""Ops that read and write at positions known only at run time; sort and top_k."""
