SELECT name FROM airlines
