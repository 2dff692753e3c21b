package schema

import "fmt"

// Sends returns nil if peers receive a field of the value, so that scans compare it, or why they do not. The path is that of
// [Setting.Field].
func (s *Schema) Sends(path string) error {
	if s.Value == nil {
		return fmt.Errorf("field %s is unknown: the map has no types", path)
	}
	f, key, err := s.find(path)
	switch {
	case err != nil:
		return err
	case key:
		return fmt.Errorf("field %s is part of the key, which never changes", path)
	case !f.Sent():
		return fmt.Errorf("field %s is not sent, and scans do not compare it", path)
	}
	return nil
}
