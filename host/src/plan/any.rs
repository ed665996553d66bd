//! Plans requests of any kind, for code that runs all kinds alike.
use super::sealed::{Kernels, Request, Subject};
use super::{Plan, ScratchBytes, Stated};
use crate::lower::{Merged, Refusal};
use crate::place::Place;
use crate::request::{Append, AttentionBackward, AttentionRequest, Merge, Parts, Places, Scratch, State};
use crate::select::Choice;
use crate::{Capabilities, Error, Launch, Tuning};

/// A [`Merge`] with its list of states.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnedMerge {
    states: Vec<State>,
    merge: Merge<'static>,
}

impl OwnedMerge {
    /// Creates a merge of these states. `merge` has everything else; its own states do not matter.
    pub const fn new(states: Vec<State>, merge: Merge<'static>) -> Self {
        OwnedMerge { states, merge }
    }

    /// Returns the request.
    pub fn merge(&self) -> Merge<'_> {
        Merge { states: &self.states, ..self.merge }
    }
}

impl Request for OwnedMerge {
    type Subject = Merged;

    fn is(&self, subject: &Merged) -> bool {
        self.merge().is(subject)
    }

    fn valid(&self, planned: Option<&Merged>) -> Result<Merged, Error> {
        self.merge().valid(planned)
    }

    fn is_moved(&self, subject: &Merged, place: impl FnOnce(Places<'_>)) -> bool {
        self.merge().is_moved(subject, place)
    }

    #[cfg(feature = "cudarc")]
    fn written(&self) -> Vec<u64> {
        self.merge().written()
    }
}

/// Declares the kinds of requests: a name, the request, and the part of the request that plans store.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident: $request:ty => $subject:ty,)*) => {
        /// A request of any kind. Like a request of one kind, it can be planned and launched.
        #[derive(Clone, Debug)]
        #[expect(clippy::large_enum_variant, reason = "there is one for each launch")]
        #[non_exhaustive]
        pub enum AnyRequest<'a> {
            $($(#[$doc])* $kind($request),)*
        }

        $(impl<'a> From<$request> for AnyRequest<'a> {
            fn from(request: $request) -> Self {
                Self::$kind(request)
            }
        })*

        /// The part of a request of any kind that a plan stores.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "plans are `Copy`")]
        pub enum AnySubject {
            $($kind($subject),)*
        }

        /// The kernels of a plan of any kind.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[expect(clippy::large_enum_variant, reason = "plans are `Copy`")]
        pub enum AnyKernels {
            $($kind(<$subject as Subject>::Kernel),)*
        }

        impl Request for AnyRequest<'_> {
            type Subject = AnySubject;

            fn is(&self, subject: &AnySubject) -> bool {
                match (self, subject) {
                    $((Self::$kind(request), AnySubject::$kind(subject)) => request.is(subject),)*
                    _ => false,
                }
            }

            fn valid(&self, planned: Option<&AnySubject>) -> Result<AnySubject, Error> {
                match self {
                    $(Self::$kind(request) => {
                        let planned = match planned {
                            Some(AnySubject::$kind(planned)) => Some(planned),
                            _ => None,
                        };
                        request.valid(planned).map(AnySubject::$kind)
                    })*
                }
            }

            fn is_moved(&self, subject: &AnySubject, place: impl FnOnce(Places<'_>)) -> bool {
                match (self, subject) {
                    $((Self::$kind(request), AnySubject::$kind(of)) => request.is_moved(of, place),)*
                    _ => false,
                }
            }

            #[cfg(feature = "cudarc")]
            fn written(&self) -> Vec<u64> {
                match self {
                    $(Self::$kind(request) => request.written(),)*
                }
            }

            fn config(&self) -> Option<&str> {
                match self {
                    $(Self::$kind(request) => request.config(),)*
                }
            }
        }

        impl Subject for AnySubject {
            type Kernel = AnyKernels;

            fn select(
                &self,
                config: Option<&str>,
                on: &Capabilities,
                tuning: &Tuning,
            ) -> Result<Choice<AnyKernels>, Error> {
                match self {
                    $(Self::$kind(subject) => {
                        let Choice { kernel, reason, fallback } = subject.select(config, on, tuning)?;
                        let (kernel, fallback) = (AnyKernels::$kind(kernel), fallback.map(AnyKernels::$kind));
                        Ok(Choice { kernel, reason, fallback })
                    })*
                }
            }

            fn is_as_planned(&self, planned: &Self, kernel: &AnyKernels) -> Result<(), Error> {
                match (self, planned, kernel) {
                    $((Self::$kind(own), Self::$kind(planned), AnyKernels::$kind(kernel)) => {
                        own.is_as_planned(planned, kernel)
                    })*
                    _ => Err(another_kind()),
                }
            }

            fn lower(&self, kernel: &AnyKernels, launch: &mut Launch) -> Result<(), Refusal> {
                match (self, kernel) {
                    $((Self::$kind(own), AnyKernels::$kind(kernel)) => own.lower(kernel, launch),)*
                    _ => Err(Refusal::Request(another_kind())),
                }
            }

            fn scratch(&self) -> Scratch {
                match self {
                    $(Self::$kind(subject) => subject.scratch(),)*
                }
            }

            fn allocated(self, bytes: ScratchBytes) -> Self {
                match self {
                    $(Self::$kind(subject) => Self::$kind(subject.allocated(bytes)),)*
                }
            }

            fn parts(&self) -> Option<Parts> {
                match self {
                    $(Self::$kind(subject) => subject.parts(),)*
                }
            }

            fn places(&mut self) -> Places<'_> {
                match self {
                    $(Self::$kind(subject) => subject.places(),)*
                }
            }
        }

        impl Kernels for AnyKernels {
            fn places(&self) -> impl Iterator<Item = Place> {
                let all: Vec<Place> = match self {
                    $(Self::$kind(kernels) => kernels.places().collect(),)*
                };
                all.into_iter()
            }

            fn scratch_bytes(&self) -> [u64; 2] {
                match self {
                    $(Self::$kind(kernels) => kernels.scratch_bytes(),)*
                }
            }
        }
    };
}

kinds! {
    /// Attention.
    Attention: AttentionRequest<'a> => Stated<AttentionRequest<'static>>,
    /// The gradients of an attention.
    Backward: AttentionBackward<'a> => Stated<AttentionBackward<'static>>,
    /// An append of new keys and values.
    Append: Append => Append,
    /// A merge with its list of states.
    Merge: OwnedMerge => Merged,
}

/// A plan of a request of any kind.
pub type AnyPlan = Plan<AnySubject>;

fn another_kind() -> Error {
    Error::invalid("request", "a request of another kind", "it must be of the plan's kind; make another plan")
}
