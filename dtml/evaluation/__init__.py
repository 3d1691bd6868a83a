"""The evaluation of predictions: metrics, intervals, breakdowns, calibration."""
