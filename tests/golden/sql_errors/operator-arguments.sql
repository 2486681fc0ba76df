SELECT * FROM my_op(TABLE flights PARTITION BY carrier ORDER BY at, 5)
