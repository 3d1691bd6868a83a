"""How good predictions were: metrics, intervals, breakdowns, calibration."""
