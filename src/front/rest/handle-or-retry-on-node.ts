import type { Answer, Request, Route } from './route.ts';

/** Handles the request here; if that fails, tries the node that has the volume. */
export async function handleOrRetryOnNode(route: Route, request: Request<never, never, never>): Promise<Answer> {
  const { nodes, body, expected, call } = request;
  try {
    return await route.handle(request);
  } catch (failure) {
    if (nodes === undefined) throw failure;
    const { method, path, onNodes = false } = route;
    const params = (request.params ?? {}) as { readonly volume?: string; readonly store?: string };
    const { store } = (body ?? {}) as { readonly store?: string };
    const reference = {
      volume: params.volume,
      store: params.store ?? store,
      body,
      isConditional: expected !== undefined,
    };
    const answer = await nodes.retryOnNode(failure, { method, path, onNodes, ...reference }, call);
    return { status: route.success.status, body: answer };
  }
}
