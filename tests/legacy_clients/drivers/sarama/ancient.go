// Sarama before 1.11: no timestamps, no headers, record format 0, gzip and snappy.
package main

import "github.com/IBM/sarama"

func setup(config *sarama.Config, opts options)              {}
func stamp(message *sarama.ProducerMessage, ms int64)        {}
func label(message *sarama.ProducerMessage, headers []header) {}
func stampOf(message *sarama.ConsumerMessage) string         { return "-" }
func labelsOf(message *sarama.ConsumerMessage) []header      { return nil }
