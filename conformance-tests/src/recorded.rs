//! A combinator that records what a store is asked and what it answers.
//!
//! Here, next to the store, a grant is what the store says: an acquire that is answered and whose
//! answer is lost on the way to the caller was granted. So the history that comes of it says whether
//! the *store* keeps its promises; what holders believed is recorded by who asks them.

use std::sync::Arc;

use leasehold_core::{
    AcquireRequest, Attempt, BackendContext, BackendError, Contention, Effect, ErrorKind, Facets, Fenced,
    FencedStore, FencedValue, ForceRelease, HolderView, Inspection, LeaseAdmin, LeaseBackend, LeaseName,
    Mode, Page, Profile, ReleaseRequest, Released, RenewAnswer, Renewal, Token, Waiter, async_trait,
};

use crate::history::{Action, Event, Open, Recorder};

/// Any backend, with its calls recorded. Clones share everything.
#[derive(Clone, Debug)]
pub(crate) struct Recorded {
    inner: Arc<dyn LeaseBackend>,
    context: BackendContext,
    recorder: Recorder,
}

impl Recorded {
    pub(crate) fn new(inner: Arc<dyn LeaseBackend>, context: BackendContext, recorder: Recorder) -> Self {
        Recorded { inner, context, recorder }
    }

    pub(crate) fn with_recorder(self, recorder: Recorder) -> Self {
        Recorded { recorder, ..self }
    }

    fn begin(&self, action: Action, name: &LeaseName, owner: &str, token: Option<Token>) -> Open {
        self.recorder.begin(&self.context, action, name, owner, token)
    }

    fn admin(&self) -> Result<&dyn LeaseAdmin, BackendError> {
        self.inner.facets().admin.ok_or_else(|| self.missing())
    }

    fn fenced(&self) -> Result<&dyn FencedStore, BackendError> {
        self.inner.facets().fenced.ok_or_else(|| self.missing())
    }

    fn missing(&self) -> BackendError {
        // why: there is nothing that could have been asked.
        let (kind, name) = (ErrorKind::Unsupported, self.inner.profile().name);
        BackendError::new(kind, Effect::None, name, "facet", "this store has no such facet")
    }

    /// When something that is kept for so long from now on is over.
    fn kept_until(&self, keep_for: std::time::Duration) -> Option<u64> {
        (!keep_for.is_zero()).then(|| (self.context.now() + keep_for).as_nanos())
    }
}

/// The end of an operation that brought an error.
fn failed(open: Open, error: &BackendError) {
    match error.effect() {
        Effect::None => open.fail(|_| {}),
        Effect::Unknown => open.info(),
    }
}

/// Who was shown to hold the name, under which token.
fn shown(end: &mut Event, holder: Option<&HolderView>) {
    end.holder = holder.map(|holder| holder.fingerprint.clone());
    end.token = holder.map(|holder| holder.token.get());
}

fn released(open: Open, answer: &Result<Released, BackendError>, kept: Option<u64>, token: Option<Token>) {
    match answer {
        Err(error) => failed(open, error),
        Ok(answer) => open.ok(|end: &mut Event| {
            let done = matches!(answer, Released::Released);
            end.released = Some(done);
            end.until_ns = kept.filter(|_| done);
            end.token = token.map(Token::get);
        }),
    }
}

fn written(open: Open, answer: &Result<Fenced, BackendError>) {
    match answer {
        // Refused for another reason than its token.
        Err(error) if error.effect() == Effect::None => open.fail(|end| end.token = None),
        Err(error) => failed(open, error),
        Ok(Fenced::Accepted) => open.ok(|_| {}),
        Ok(Fenced::Stale(_)) => open.fail(|_| {}),
    }
}

#[async_trait]
impl LeaseBackend for Recorded {
    fn profile(&self) -> &Profile {
        self.inner.profile()
    }

    async fn acquire(&self, request: &AcquireRequest) -> Result<Attempt, BackendError> {
        if request.mode != Mode::Exclusive {
            // Histories are of exclusive leases.
            return self.inner.acquire(request).await;
        }
        let open = self.begin(Action::Acquire, &request.name, &request.owner.fingerprint(), None);
        self.recorder.claim(request.claim());
        let answer = self.inner.acquire(request).await;
        match &answer {
            Err(error) => failed(open, error),
            Ok(Attempt::Granted(grant)) => open.ok(|end| {
                end.token = Some(grant.token.get());
                end.until_ns = Some((grant.anchor + grant.ttl).as_nanos());
            }),
            Ok(Attempt::Held(seen)) => {
                self.recorder.unclaim(&request.claim());
                open.fail(|end| shown(end, seen.holder.as_ref()));
            }
        }
        answer
    }

    async fn renew(&self, renewals: &[Renewal]) -> Vec<Result<RenewAnswer, BackendError>> {
        let open = renewals.iter().map(|renewal| {
            self.begin(Action::Renew, &renewal.claim.name, &renewal.claim.owner.fingerprint(), None)
        });
        let open: Vec<Open> = open.collect();
        let answers = self.inner.renew(renewals).await;
        // What is missing is never answered.
        for (open, answer) in open.into_iter().zip(&answers) {
            match answer {
                Err(error) => failed(open, error),
                Ok(RenewAnswer::Renewed { anchor, ttl, .. }) => {
                    open.ok(|end| end.until_ns = Some((*anchor + *ttl).as_nanos()));
                }
                Ok(_) => open.fail(|_| {}),
            }
        }
        answers
    }

    async fn release(&self, request: &ReleaseRequest) -> Result<Released, BackendError> {
        let claim = &request.claim;
        let open = self.begin(Action::Release, &claim.name, &claim.owner.fingerprint(), None);
        let answer = self.inner.release(request).await;
        if answer.is_ok() {
            self.recorder.unclaim(claim);
        }
        released(open, &answer, self.kept_until(request.keep_for), None);
        answer
    }

    async fn inspect(&self, name: &LeaseName) -> Result<Inspection, BackendError> {
        let open = self.begin(Action::Look, name, "", None);
        let answer = self.inner.inspect(name).await;
        match &answer {
            Err(error) => failed(open, error),
            Ok(seen) => open.ok(|end| {
                shown(end, seen.holder());
                end.waiting = seen.waiting;
            }),
        }
        answer
    }

    async fn waiter(&self, request: &AcquireRequest) -> Result<Box<dyn Waiter>, BackendError> {
        let open = self.begin(Action::Wait, &request.name, &request.owner.fingerprint(), None);
        match self.inner.waiter(request).await {
            Ok(inner) => Ok(Box::new(Waiting { inner, open: Some(open) })),
            Err(error) => {
                open.info();
                Err(error)
            }
        }
    }

    fn facets(&self) -> Facets<'_> {
        let mut facets = self.inner.facets();
        if facets.admin.is_some() {
            facets.admin = Some(self);
        }
        if facets.fenced.is_some() {
            facets.fenced = Some(self);
        }
        facets
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}

/// A waiter whose life is recorded.
#[derive(Debug)]
struct Waiting {
    inner: Box<dyn Waiter>,
    open: Option<Open>,
}

#[async_trait]
impl Waiter for Waiting {
    async fn wait(&mut self, seen: &Contention) {
        self.inner.wait(seen).await;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(open) = self.open.take() {
            open.info();
        }
    }
}

#[async_trait]
impl LeaseAdmin for Recorded {
    async fn list(&self, prefix: &str, page: &Page) -> Result<Vec<Inspection>, BackendError> {
        self.admin()?.list(prefix, page).await
    }

    async fn force_release(&self, request: &ForceRelease) -> Result<Released, BackendError> {
        let token = Some(request.token);
        let open = self.begin(Action::Revoke, &request.name, "", token);
        let answer = self.admin()?.force_release(request).await;
        released(open, &answer, self.kept_until(request.keep_for), token);
        answer
    }

    async fn raise_floor(&self, name: Option<&LeaseName>, token: Token) -> Result<(), BackendError> {
        self.admin()?.raise_floor(name, token).await
    }

    async fn raise_epoch(&self) -> Result<u64, BackendError> {
        self.admin()?.raise_epoch().await
    }

    async fn prepare(&self) -> Result<(), BackendError> {
        self.admin()?.prepare().await
    }

    async fn probe(&self) -> Result<(), BackendError> {
        self.admin()?.probe().await
    }
}

#[async_trait]
impl FencedStore for Recorded {
    async fn advance(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        let open = self.begin(Action::Write, name, "", Some(token));
        let answer = self.fenced()?.advance(name, token).await;
        written(open, &answer);
        answer
    }

    async fn put(
        &self,
        name: &LeaseName,
        key: &str,
        value: &[u8],
        token: Token,
    ) -> Result<Fenced, BackendError> {
        let open = self.begin(Action::Write, name, "", Some(token));
        let answer = self.fenced()?.put(name, key, value, token).await;
        written(open, &answer);
        answer
    }

    async fn get(&self, name: &LeaseName, key: &str) -> Result<Option<FencedValue>, BackendError> {
        self.fenced()?.get(name, key).await
    }

    async fn list(&self, name: &LeaseName, prefix: &str) -> Result<Vec<String>, BackendError> {
        self.fenced()?.list(name, prefix).await
    }

    async fn purge(&self, name: &LeaseName, token: Token) -> Result<Fenced, BackendError> {
        let open = self.begin(Action::Write, name, "", Some(token));
        let answer = self.fenced()?.purge(name, token).await;
        written(open, &answer);
        answer
    }
}
