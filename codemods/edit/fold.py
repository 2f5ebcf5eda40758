"""Removes a test whose answer is known from an expression."""

import libcst as cst

_ALWAYS = cst.Name("True")
_NEVER = cst.Name("False")
_CODE = cst.Module([]).code_for_node


def folded(source: str, test: str, answer: bool) -> str | bool:
    """The code of an expression without the tests in it that read as `test`; True or False if nothing else decides."""
    expression = cst.parse_expression(f"({source})")
    inner = expression.with_changes(lpar=expression.lpar[1:], rpar=expression.rpar[:-1])
    result = inner.visit(_Fold(test, answer))
    if result is _ALWAYS or result is _NEVER:
        return result is _ALWAYS
    assert isinstance(result, cst.CSTNode)
    return _CODE(result)


class _Fold(cst.CSTTransformer):
    def __init__(self, test: str, answer: bool) -> None:
        super().__init__()
        self.test = test
        self.answer = _NEVER
        if answer:
            self.answer = _ALWAYS

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        is_test = _CODE(original_node.with_changes(lpar=(), rpar=())) == self.test
        if is_test:
            return self.answer
        return updated_node

    def leave_UnaryOperation(
        self, original_node: cst.UnaryOperation, updated_node: cst.UnaryOperation
    ) -> cst.BaseExpression:
        if isinstance(updated_node.operator, cst.Not):
            if updated_node.expression is _ALWAYS:
                return _NEVER
            if updated_node.expression is _NEVER:
                return _ALWAYS
        return updated_node

    def leave_BooleanOperation(
        self, original_node: cst.BooleanOperation, updated_node: cst.BooleanOperation
    ) -> cst.BaseExpression:
        left = updated_node.left
        right = updated_node.right
        is_and = isinstance(updated_node.operator, cst.And)
        decides = _ALWAYS
        is_neutral = _NEVER
        if is_and:
            decides = _NEVER
            is_neutral = _ALWAYS
        if left is decides or right is decides:
            return decides
        if left is is_neutral:
            return right
        if right is is_neutral:
            return left
        return updated_node

    def leave_IfExp(self, original_node: cst.IfExp, updated_node: cst.IfExp) -> cst.BaseExpression:
        if updated_node.test is _ALWAYS:
            return updated_node.body
        if updated_node.test is _NEVER:
            return updated_node.orelse
        return updated_node
