//go:build !amd64

package crc

const wide = false

func fold(*folds, uint32, []byte) uint32 { panic("crc: no wide registers") }
