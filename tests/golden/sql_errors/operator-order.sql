SELECT * FROM my_op(TABLE flights PARTITION BY carrier ORDER BY delay)
