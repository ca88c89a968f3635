"""What a machine's constants are measured with: rows of dsplan.calibration/1 and answers of dsplan.answers/1."""
