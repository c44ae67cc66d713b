// Package service tests the daemon as a service: systemd's protocols with a fake manager, the unit files with systemd's own tools,
// the configuration file, reload, drain and the files for operators.
package service
