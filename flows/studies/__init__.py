"""Questions asked of a market's models: do they look ahead, and does attention explain them?"""
