package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"mapsync/syncd/schema"
)

// textOfKey returns the fields of a key as text, and the key, without the origin of a drained map.
func textOfKey(key json.RawMessage) (text string, shown json.RawMessage, err error) {
	decoder := json.NewDecoder(bytes.NewReader(key))
	if _, err := decoder.Token(); err != nil {
		return "", nil, fmt.Errorf("read key: %w", err)
	}
	var out, object strings.Builder
	object.WriteByte('{')
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return "", nil, fmt.Errorf("read key: %w", err)
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return "", nil, fmt.Errorf("read key: %w", err)
		}
		if name == schema.OriginField {
			continue
		}
		if out.Len() > 0 {
			out.WriteByte(' ')
			object.WriteByte(',')
		}
		fmt.Fprintf(&out, "%s=%s", name, strings.Trim(string(value), `"`))
		fmt.Fprintf(&object, "%q:%s", name, value)
	}
	object.WriteByte('}')
	return out.String(), json.RawMessage(object.String()), nil
}

// numberOf returns the number in a field of a value. In a per-CPU map it is the sum over all CPUs.
func numberOf(value json.RawMessage, field string) (uint64, error) {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(value, &object); err != nil {
		return 0, usageError{fmt.Errorf("values have no fields (%w): give the map BTF, or schema: MAP=FILE.o", err)}
	}
	name, rest, nested := strings.Cut(field, ".")
	inner, ok := object[name]
	if !ok {
		return sumOfCPUs(object, field)
	}
	if nested {
		return numberOf(inner, rest)
	}
	n, err := strconv.ParseUint(strings.Trim(string(inner), `"`), 10, 64)
	if err != nil {
		return 0, usageError{fmt.Errorf("field %s is not an unsigned integer: choose another --sum", field)}
	}
	return n, nil
}

func sumOfCPUs(value map[string]json.RawMessage, field string) (sum uint64, err error) {
	var cpus []json.RawMessage
	if json.Unmarshal(value["cpu"], &cpus) != nil {
		return 0, usageError{fmt.Errorf("values have no field %s: choose another --sum", field)}
	}
	for _, cpu := range cpus {
		n, err := numberOf(cpu, field)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}
