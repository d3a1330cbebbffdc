"""A small HTTP/2 server for gRPC calls.

``hpack_reader`` reads header blocks, ``heads`` what they ask for, ``frames`` has the words of the protocol,
``connection`` is one connection, ``server`` listens and leaves.
"""
