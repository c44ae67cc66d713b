//go:build !amd64

package crc

var wide, half bool

func fold(*folds, uint32, []byte) uint32 { panic("crc: no wide registers") }

func foldHalf(*folds, uint32, []byte) uint32 { panic("crc: no wide registers") }

func foldCopy(*folds, uint32, []byte, []byte) uint32 { panic("crc: no wide registers") }

func foldCopyHalf(*folds, uint32, []byte, []byte) uint32 { panic("crc: no wide registers") }
