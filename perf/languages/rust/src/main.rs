//! Sends records with Confluent's client, a callback for each. languages.py explains the arguments and the output.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant};

use confluent_kafka::common::serialization::ByteArraySerializer;
use confluent_kafka::producer::{callback, Callback, KafkaProducer, Producer, ProducerConfig, ProducerRecord};

type Bytes = KafkaProducer<Vec<u8>, Vec<u8>>;

fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: getrusage fills the structure if it returns 0.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    let time = |value: libc::timeval| Duration::new(value.tv_sec as u64, value.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

async fn send(producer: &Bytes, records: usize, size: usize) {
    let acknowledged = Arc::new(AtomicUsize::new(0));
    for _ in 0..records {
        let count = acknowledged.clone();
        let each: Box<dyn Callback> = Box::new(callback::new(move |_, error| {
            if let Some(error) = error {
                panic!("{error}");
            }
            count.fetch_add(1, Ordering::Relaxed);
        }));
        let record = ProducerRecord::new("bench".to_string(), Some(vec![0u8; size]));
        let _ = producer.send_with_callback(record, Some(each)).await.unwrap();
    }
    producer.flush().await.unwrap();
    assert_eq!(acknowledged.load(Ordering::Relaxed), records);
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let records: usize = arguments[2].parse().unwrap();
    let size: usize = arguments[3].parse().unwrap();
    let mut options = HashMap::from([("bootstrap.servers".to_string(), arguments[1].clone())]);
    if size == 100 {
        options.insert("linger.ms".to_string(), "5".to_string());
    }
    let config = ProducerConfig::new(&options).unwrap();
    let serializer = ByteArraySerializer::default;
    let producer = Bytes::new(config, serializer(), serializer()).unwrap();
    send(&producer, records / 5, size).await;
    let (used, start) = (cpu(), Instant::now());
    send(&producer, records, size).await;
    let per_record = |time: Duration| time.as_nanos() as f64 / 1e3 / records as f64;
    println!(
        "{{\"version\": \"1\", \"cpu_us\": {}, \"wall_us\": {}}}",
        per_record(cpu() - used),
        per_record(start.elapsed())
    );
    producer.close().await.unwrap();
}
