"""The tools, one file each: functions of a record, with flags as parameters."""
