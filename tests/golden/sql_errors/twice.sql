SELECT carrier, delay AS carrier FROM flights
