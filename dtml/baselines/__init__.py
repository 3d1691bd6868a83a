"""The models and rules that DTML is compared with: recurrent networks,
StockNet, classifiers, naive rules.
"""
