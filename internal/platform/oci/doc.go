// Package oci gives containers NICs through OCI runtimes.
//
//	engine ── OCI runtime ─┬─ createRuntime, createContainer, poststop ──▶ Hook ── control (bind, declare, delete)
//	                       └─ or Runtime itself, which edits the bundle and becomes runc or crun
//
// CDI files (package container) name the hooks. Engines without CDI use the Runtime.
package oci
