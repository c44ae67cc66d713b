//go:build !amd64

package crc32c

const wide = false

func fold(*folds, uint32, []byte) uint32 { panic("crc32c: no wide registers") }
