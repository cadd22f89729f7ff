// Sarama since headers and Config.Version.
package main

import (
	"reflect"
	"strconv"
	"time"

	"github.com/IBM/sarama"
)

func setup(config *sarama.Config, opts options) {
	if name := opts.get("version", ""); name != "" {
		version, err := sarama.ParseKafkaVersion(name)
		must(err)
		config.Version = version
	}
	if opts.get("idempotent", "") != "" {
		// Since 1.20.
		field := reflect.ValueOf(&config.Producer).Elem().FieldByName("Idempotent")
		if !field.IsValid() {
			fail("this Sarama has no idempotent producer")
		}
		field.SetBool(true)
		config.Net.MaxOpenRequests = 1
	}
	canLabel = config.Version.IsAtLeast(sarama.V0_11_0_0)
}

// Headers are not allowed if an older record format is configured.
var canLabel bool

func stamp(message *sarama.ProducerMessage, ms int64) { message.Timestamp = time.UnixMilli(ms) }

func label(message *sarama.ProducerMessage, headers []header) {
	if !canLabel {
		return
	}
	for _, one := range headers {
		added := sarama.RecordHeader{Key: []byte(one.name), Value: one.value}
		message.Headers = append(message.Headers, added)
	}
}

func stampOf(message *sarama.ConsumerMessage) string {
	if message.Timestamp.IsZero() || message.Timestamp.UnixMilli() < 0 {
		return "-"
	}
	return strconv.FormatInt(message.Timestamp.UnixMilli(), 10)
}

func labelsOf(message *sarama.ConsumerMessage) (headers []header) {
	for _, one := range message.Headers {
		headers = append(headers, header{string(one.Key), one.Value})
	}
	return headers
}
