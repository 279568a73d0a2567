"""The tests, as a package: the wheel of rxnmapper installs another folder of this name."""
