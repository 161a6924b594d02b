//! `model::timeline`.

use vmaudit::model::timeline::stride;

#[test]
fn strides_keep_fewer_than_requested() {
    assert_eq!([stride(0, 8), stride(7, 8), stride(8, 8), stride(15, 8), stride(16, 8)], [1, 1, 2, 2, 4]);
    assert!((1..5000).all(|n| stride(n, 64) >= stride(n, 128)), "the coarser contains the finer");
    assert!(stride(u64::MAX, 1024) > 1);
    assert!(stride(5, 0) > 5);
}
