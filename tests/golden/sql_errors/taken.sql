CREATE VIEW flights AS SELECT * FROM alerts
