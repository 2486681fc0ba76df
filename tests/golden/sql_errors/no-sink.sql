INSERT INTO nowhere SELECT * FROM flights
