"""The tools, a file or folder each: functions whose parameters are flags."""
