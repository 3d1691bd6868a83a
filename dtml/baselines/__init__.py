"""What DTML is compared with: recurrent networks, StockNet, classifiers, naive rules."""
