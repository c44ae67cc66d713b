package load

import (
	"encoding/binary"
	"fmt"
)

// Fill fills a value for a key. Values of different stamps differ in every word.
func Fill(value []byte, key, stamp uint64) {
	word := stamp<<20 ^ key
	for i := range value {
		if i%8 == 0 && len(value)-i >= 8 {
			binary.LittleEndian.PutUint64(value[i:], word+uint64(i))
		} else if i >= len(value)/8*8 {
			value[i] = byte(word) + byte(i)
		}
	}
}

// Check reports whether Fill made this value for the key, with any stamp. An empty value was never written.
func Check(value []byte, key uint64) error {
	if len(value) < 8 {
		return nil // too short to check
	}
	word := binary.LittleEndian.Uint64(value)
	if (word^key)&(1<<20-1) != 0 {
		return fmt.Errorf("key %d has a value that was not made for it", key)
	}
	for i := 8; i+8 <= len(value); i += 8 {
		if binary.LittleEndian.Uint64(value[i:]) != word+uint64(i) {
			return fmt.Errorf("key %d has a value that is torn at byte %d", key, i)
		}
	}
	return nil
}
