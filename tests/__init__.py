"""Laws of the product: each folder is named after what its tests are about;
`support` helps them.
"""
