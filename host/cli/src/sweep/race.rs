//! Finds the fastest of many kernels in few launches.
use std::time::Duration;

/// Launches in a candidate's first, short timing.
const FIRST_LAUNCHES: usize = 3;
/// A kernel that takes this multiple of the best time is dropped.
const HOPELESS: f64 = 2.0;
/// After the second timing, the kernels that take at most this multiple of the best time are timed again.
/// These kernels are the *leaders*.
const LEADING: f64 = 1.1;
/// Maximum number of leaders.
const LEADERS: usize = 4;
/// Number of timings of each leader. The leaders take turns, so that a card that slows down slows all of them
/// equally.
const LAPS: usize = 9;
/// Minimum duration of a lap. In a shorter lap, the resolution of the clock would matter.
const LAP: Duration = Duration::from_millis(4);
const MOST_LAUNCHES: usize = 400;

/// The result of a candidate.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Result {
    /// Seconds per launch: the median of the candidate's last timings.
    pub seconds: f64,
    /// The last stage that the candidate reached.
    pub stage: Stage,
}

/// The stages of a race.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stage {
    /// The candidate had a first, short timing, and took twice the time of the best candidate.
    Hopeless,
    /// The candidate was timed a second time, and was not among the leaders.
    Timed,
    /// The candidate was timed in turns with the other leaders.
    Leader,
}

/// Times `candidates` with `time(candidate, launches)`. The results are in the order of the candidates. Calls
/// `done` after each step.
pub(super) fn race<E>(
    candidates: usize,
    mut time: impl FnMut(usize, usize) -> std::result::Result<Duration, E>,
    mut done: impl FnMut(usize, Stage),
) -> std::result::Result<Vec<Result>, E> {
    let mut results = Vec::with_capacity(candidates);
    for candidate in 0..candidates {
        // The first launch also loads the kernel.
        time(candidate, 1)?;
        let seconds = time(candidate, FIRST_LAUNCHES)?.as_secs_f64() / FIRST_LAUNCHES as f64;
        results.push(Result { seconds, stage: Stage::Hopeless });
        done(candidate, Stage::Hopeless);
    }
    let best = fastest(&results, Stage::Hopeless);
    for (candidate, result) in results.iter_mut().enumerate().filter(|(_, r)| r.seconds <= HOPELESS * best) {
        let laps = (0..3)
            .map(|_| lap(&mut time, candidate, result.seconds))
            .collect::<std::result::Result<_, _>>()?;
        *result = Result { seconds: median(laps), stage: Stage::Timed };
        done(candidate, Stage::Timed);
    }
    let best = fastest(&results, Stage::Timed);
    let mut leaders: Vec<usize> = (0..candidates).filter(|i| results[*i].stage == Stage::Timed).collect();
    leaders.retain(|i| results[*i].seconds <= LEADING * best);
    leaders.sort_by(|a, b| results[*a].seconds.total_cmp(&results[*b].seconds));
    leaders.truncate(LEADERS);
    let mut laps = vec![vec![]; leaders.len()];
    for _ in 0..LAPS {
        for (own, &candidate) in laps.iter_mut().zip(&leaders) {
            own.push(lap(&mut time, candidate, results[candidate].seconds)?);
        }
    }
    for (own, candidate) in laps.into_iter().zip(leaders) {
        results[candidate] = Result { seconds: median(own), stage: Stage::Leader };
        done(candidate, Stage::Leader);
    }
    Ok(results)
}

/// Returns the fastest leader.
pub(super) fn winner(results: &[Result]) -> Option<usize> {
    let leaders = (0..results.len()).filter(|i| results[*i].stage == Stage::Leader);
    leaders.min_by(|a, b| results[*a].seconds.total_cmp(&results[*b].seconds))
}

/// Returns the seconds per launch, averaged over a lap.
fn lap<E>(
    time: &mut impl FnMut(usize, usize) -> std::result::Result<Duration, E>,
    candidate: usize,
    expected: f64,
) -> std::result::Result<f64, E> {
    let launches = ((LAP.as_secs_f64() / expected.max(1e-9)).ceil() as usize).clamp(1, MOST_LAUNCHES);
    Ok(time(candidate, launches)?.as_secs_f64() / launches as f64)
}

/// Returns the minimum seconds of the kernels that reached this stage.
fn fastest(results: &[Result], stage: Stage) -> f64 {
    results.iter().filter(|r| r.stage >= stage).map(|r| r.seconds).fold(f64::INFINITY, f64::min)
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds.get(seconds.len() / 2).copied().unwrap_or(f64::INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// Races candidates on a card on which candidate `i` takes `micros[i]` plus `noise(i, launches so far)`.
    /// Also returns every requested timing.
    fn run(micros: &[f64], noise: impl Fn(usize, usize) -> f64) -> (Vec<Result>, Vec<(usize, usize)>) {
        let asked = RefCell::new(vec![]);
        let time = |candidate: usize, launches: usize| {
            let turn = asked.borrow().len();
            asked.borrow_mut().push((candidate, launches));
            let seconds = (micros[candidate] + noise(candidate, turn)) * 1e-6 * launches as f64;
            Ok::<_, ()>(Duration::from_secs_f64(seconds))
        };
        let results = race(micros.len(), time, |_, _| {}).expect("nothing fails");
        (results, asked.into_inner())
    }

    #[test]
    fn the_fastest_wins_and_the_hopeless_are_not_timed_again() {
        let (results, asked) = run(&[50.0, 10.0, 12.0, 10.5, 21.0], |_, _| 0.0);
        assert_eq!(winner(&results), Some(1));
        let stages: Vec<_> = results.iter().map(|r| r.stage).collect();
        assert_eq!(stages, [Stage::Hopeless, Stage::Leader, Stage::Timed, Stage::Leader, Stage::Hopeless]);
        let launches =
            |candidate| asked.iter().filter(|(c, _)| *c == candidate).map(|(_, n)| n).sum::<usize>();
        assert_eq!((launches(0), launches(4)), (1 + FIRST_LAUNCHES, 1 + FIRST_LAUNCHES));
        assert!(launches(1) > 12 * 300, "a lap of 4 ms has 400 launches of 10 us");
    }

    #[test]
    fn leaders_take_turns() {
        let (results, asked) = run(&[10.0, 10.2], |_, _| 0.0);
        let turns: Vec<_> = asked[asked.len() - 2 * LAPS..].iter().map(|(candidate, _)| *candidate).collect();
        assert_eq!(turns, [0, 1].repeat(LAPS));
        assert_eq!(winner(&results), Some(0));
    }

    #[test]
    fn a_card_that_slows_down_does_not_choose_who_came_first() {
        // Every timing is slower than the previous one. Both candidates slow down equally, because they take
        // turns.
        let (results, _) = run(&[10.0, 9.9], |_, turn| turn as f64 * 0.02);
        assert_eq!(winner(&results), Some(1));
    }

    #[test]
    fn one_disturbance_decides_nothing() {
        let (results, _) =
            run(&[10.0, 9.0], |candidate, turn| if candidate == 1 && turn == 13 { 500.0 } else { 0.0 });
        assert_eq!(winner(&results), Some(1));
    }

    #[test]
    fn slow_launches_are_timed_one_by_one_and_failures_come_back() {
        let (_, asked) = run(&[50_000.0], |_, _| 0.0);
        assert!(asked.iter().skip(2).all(|(_, launches)| *launches == 1));
        assert_eq!(
            race(2, |i, _| if i == 1 { Err("gone") } else { Ok(Duration::from_secs(1)) }, |_, _| {}),
            Err("gone")
        );
        assert_eq!(winner(&[]), None);
    }
}
