// A group without members, as Sarama had it alone until 1.19: an application shares the partitions
// out by itself and only its offsets are the group's.
package main

import (
	"fmt"
	"time"

	"github.com/IBM/sarama"
)

func group(config *sarama.Config, opts options, topic string, count int) {
	config.Consumer.Offsets.CommitInterval = 100 * time.Millisecond
	client, err := sarama.NewClient(opts.brokers(), config)
	must(err)
	offsets, err := sarama.NewOffsetManagerFromClient(opts.get("group", ""), client)
	must(err)
	consumer, err := sarama.NewConsumerFromClient(client)
	must(err)
	partitions, err := client.Partitions(topic)
	must(err)
	incoming := make(chan *sarama.ConsumerMessage)
	marks := map[int32]sarama.PartitionOffsetManager{}
	retries := integer(opts.get("retries", "0"))
	// It is for the application to call again if the connection to the broker is lost.
	repeat := func(call func() error) {
		for err := call(); err != nil; err = call() {
			if retries == 0 {
				must(err)
			}
			retries--
			time.Sleep(100 * time.Millisecond)
		}
	}
	for _, partition := range partitions {
		repeat(func() (err error) {
			marks[partition], err = offsets.ManagePartition(topic, partition)
			return
		})
		next, _ := marks[partition].NextOffset()
		var stream sarama.PartitionConsumer
		repeat(func() (err error) {
			stream, err = consumer.ConsumePartition(topic, partition, next)
			return
		})
		go func() {
			for one := range stream.Messages() {
				incoming <- one
			}
		}()
	}
	limit := time.After(opts.timeout())
	for ; count > 0; count-- {
		select {
		case one := <-incoming:
			show(one)
			marks[one.Partition].MarkOffset(one.Offset+1, "")
		case <-limit:
			fail(fmt.Sprintf("timed out, %d records still missing", count))
		}
	}
	// Each waits until its mark is committed.
	for _, mark := range marks {
		must(mark.Close())
	}
	must(offsets.Close())
}
