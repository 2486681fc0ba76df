SELECT carrier FROM flights;
SELECT delay FROM flights
