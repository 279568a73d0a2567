"""Teaching: a sheet of exercises for each student of a class, and its marks.

student_names  when two spellings are one name, and what a file of that name is called
options        the options of a class
folder         sheets and forms written to a folder, without replacing another file
class_list     the names of a class, in a CSV file
sheets         the exercises of a student, whose numbers are drawn from the name
forms          the form that a student fills in, written and read
marks          the marks of a form, and those of a class
"""
