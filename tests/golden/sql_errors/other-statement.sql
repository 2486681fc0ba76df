SELECT carrier FROM flights;
DROP TABLE flights
